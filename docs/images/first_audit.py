"""Draw the picture of the README from the results of `make audit`.

python docs/images/first_audit.py seepage-report docs/images/first-audit.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from seepage.audit.summary import read_rows

SCALE, GAP, PAIRS = 3, 4, 12


def main(folder: Path, target: Path) -> None:
    """True images above, reconstructions without a defence below, best first."""
    _, rows, table = read_rows(folder)
    undefended = rows[(rows["attack"] != "none") & (rows["defence"] == "none")]
    pictures = table.pictures(undefended["trial"].iloc[0])
    assert pictures is not None, f"expected pictures in {folder}, got none"
    order = np.argsort(-pictures.psnr)[:PAIRS]
    height, width = pictures.truth.shape[1:3]
    sheet = Image.new("L", (PAIRS * (SCALE * width + GAP) - GAP, 2 * SCALE * height + GAP), 255)
    for column, which in enumerate(order):
        for row, images in enumerate((pictures.truth, pictures.guess)):
            image = Image.fromarray(images[which, :, :, 0]).resize(
                (SCALE * width, SCALE * height), Image.Resampling.NEAREST
            )
            sheet.paste(image, (column * (SCALE * width + GAP), row * (SCALE * height + GAP)))
    sheet.save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
