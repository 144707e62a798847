"""A table of shops of three hidden kinds, in which price, weather and promotions work in different ways.

    python examples/shops.py shops.csv --shops 40 --rows 300     # also new_shop.csv, of a shop that is not in the table
    python -m fedem_lightning.compare shops.csv --label units --client shop

`examples/shops.csv` is what it writes for 24 shops with 60 rows.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

EFFECTS = np.array([[-4.0, 6.0, 2.0], [-1.0, -5.0, 8.0], [3.0, 1.0, -2.0]])
"""Of the price, the temperature and a promotion on the units that a shop of each kind sells."""


def rows_of(name: str, kind: int, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """The n days of a shop."""
    price, temperature = rng.uniform(1, 9, n).round(2), rng.normal(15, 8, n).round(1)
    promotion = rng.integers(0, 2, n)
    scaled = np.stack([(price - 5) / 2.3, (temperature - 15) / 8, promotion - 0.5], axis=1)  # [n, 3]
    units = 30 + scaled @ EFFECTS[kind] + rng.normal(0, 2, n)
    columns = {"price": price, "temperature": temperature, "promotion": promotion, "units": units.round(1)}
    return pd.DataFrame({"shop": name, **columns})


def main() -> None:
    """Writes the table, and beside it the rows of a new shop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shops", type=int, default=24)
    parser.add_argument("--rows", type=int, default=60)
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    shops = [rows_of(f"{s + 1:02d}", s % 3, chosen.rows, rng) for s in range(chosen.shops)]
    pd.concat(shops).to_csv(chosen.out, index=False)
    rows_of("new", 1, 20, rng).to_csv(chosen.out.with_name("new_shop.csv"), index=False)


if __name__ == "__main__":
    main()
