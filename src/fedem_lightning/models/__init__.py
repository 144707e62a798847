"""Models: components, frozen parameters, stored models of clients, and personal models."""
