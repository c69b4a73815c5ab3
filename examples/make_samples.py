"""Creates sample inputs from data that installed Python packages contain.

    python examples/make_samples.py FOLDER

No network is needed. The program writes

* FOLDER/digits: 1,797 PNG images of handwritten digits, one folder per class;
* FOLDER/tables: four CSV files with a header;
* FOLDER/texts: licences, read-mes and descriptions of data sets, one folder per class and one file
  per document;
* FOLDER/packages.jsonl: a JSON object about each installed package, one per line.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn import datasets


def digits(folder: Path) -> int:
    """Writes the images of scikit-learn's `load_digits` to folder/CLASS/NUMBER.png.

    They have 8 x 8 pixels with 17 grey levels.

    Returns:
        The number of images.
    """
    bunch = datasets.load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(pixels, bunch.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return len(pixels)


def tables(folder: Path) -> int:
    """Writes scikit-learn's iris, wine, breast cancer and diabetes tables.

    The header has the names of the columns. Classes are written by name.

    Returns:
        The number of tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("iris", "wine", "breast_cancer", "diabetes"):
        bunch = getattr(datasets, f"load_{name}")(
            **({"scaled": False} if name == "diabetes" else {})
        )
        classes = getattr(bunch, "target_names", None)
        targets = bunch.target if classes is None else np.asarray(classes)[bunch.target]
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(
                [
                    *(
                        str(column).replace(" (cm)", "_cm").replace(" ", "_")
                        for column in bunch.feature_names
                    ),
                    "target",
                ]
            )
            writer.writerows(
                [*row, target]
                for row, target in zip(bunch.data.tolist(), targets.tolist(), strict=True)
            )
    return 4


def texts(folder: Path) -> int:
    """Writes documents of three classes.

    The classes are `description` (scikit-learn's data sets), and `licence` and `readme` (of the
    installed packages).

    Returns:
        The number of documents.
    """
    documents = {(label, name): text for label, name, text in _documents()}
    for (label, name), text in documents.items():
        path = folder / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return len(documents)


def packages(path: Path) -> int:
    """Writes a JSON object about each installed package.

    It has the name, version, summary, number of files and the list of requirements. The summary is
    missing if the package has none.

    Returns:
        The number of packages.
    """
    found = sorted(metadata.distributions(), key=lambda package: package.name.lower())
    with open(path, "w", encoding="utf-8") as file:
        for package in found:
            about: dict[str, object] = {"name": package.name, "version": package.version}
            if summary := package.metadata["Summary"]:
                about["summary"] = summary
            about |= {"files": len(package.files or []), "requires": package.requires or []}
            file.write(json.dumps(about) + "\n")
    return len(found)


def _documents() -> Iterator[tuple[str, str, str]]:
    """Yields (class, file name, text) of every document."""
    descriptions = Path(datasets.__file__).parent / "descr"
    for path in sorted(descriptions.glob("*.rst")):
        yield "description", f"{path.stem}.txt", path.read_text(encoding="utf-8")
    for package in sorted(metadata.distributions(), key=lambda found: found.name.lower()):
        readme = (package.read_text("METADATA") or "").partition("\n\n")[2]
        if readme.strip():
            yield "readme", f"{package.name.lower()}.txt", readme
        for file in package.files or []:
            if ".dist-info" in str(file) and file.name.upper().startswith(
                ("LICENSE", "LICENCE", "COPYING")
            ):
                text = Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")
                if text.strip():
                    yield (
                        "licence",
                        f"{package.name.lower()}-{file.name.lower().replace('.', '-')}.txt",
                        text,
                    )


def main(folder: Path) -> None:
    counts = (
        f"{digits(folder / 'digits'):,} images of digits",
        f"{tables(folder / 'tables')} tables",
        f"{texts(folder / 'texts'):,} texts",
        f"{packages(folder / 'packages.jsonl'):,} JSON lines about packages",
    )
    print(f"{', '.join(counts)}: {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
