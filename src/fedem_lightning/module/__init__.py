"""The LightningModule of every method: its constructor, its steps, a round."""
