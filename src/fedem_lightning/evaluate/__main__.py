"""`python -m fedem_lightning.evaluate RUN DATA`: scores of rows by the models of their clients."""

from fedem_lightning.serving.commands import main_of

main = main_of("evaluate")

if __name__ == "__main__":
    main()
