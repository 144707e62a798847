"""`python -m fedem_lightning.compare DATA`: whether each client should have a model of its own, and which method's."""

import sys

if __name__ == "__main__":
    from fedem_lightning.comparison.command import main

    main()
else:
    from fedem_lightning.comparison.comparing import compare

    sys.modules[__name__] = compare  # type: ignore[assignment]  # fedem_lightning.compare(...) is the function
