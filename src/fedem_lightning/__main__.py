"""`python -m fedem_lightning`."""

from fedem_lightning.cli import main

if __name__ == "__main__":
    main()
