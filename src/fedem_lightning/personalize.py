"""`python -m fedem_lightning.personalize RUN DATA --out FILE`: models for clients that did not train."""

from fedem_lightning.serving.commands import main_of

main = main_of("personalize")

if __name__ == "__main__":
    main()
