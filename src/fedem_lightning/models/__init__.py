"""Models: components, frozen parameters, models that stay with clients, and models that clients predict with."""
