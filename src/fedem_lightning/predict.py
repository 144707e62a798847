"""`python -m fedem_lightning.predict RUN DATA --out FILE`: the prediction of each row by its client's model."""

from fedem_lightning.serving.commands import main_of

main = main_of("predict")

if __name__ == "__main__":
    main()
