"""`python -m fedem_lightning.export RUN --client NAME|--all --format FORMAT`: trained models for other programs."""

from fedem_lightning.serving.commands import main_of

main = main_of("export")

if __name__ == "__main__":
    main()
