"""Trained models outside of training: load, personalise, predict, evaluate, export."""
