"""What the steps of the LightningModule do: checks, rounds, scores, checkpoints, trained models."""
