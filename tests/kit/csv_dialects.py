"""CSV files in many dialects, with their true contents.

UCI contains files without a header. Other detectors lose their first row, because they treat it as
a header.
"""

import csv
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_WORDS = """amber basil cedar delta ember fjord grove hazel ivory jolly karma lemon maple north ocean pearl quartz river
stone tulip umber velvet willow yonder zephyr"""
WORDS = tuple(_WORDS.split())
PLACES = (
    "Springfield",
    "New York",
    "Saint-Malo",
    "Kraków",
    "O'Fallon",
    "Rio de Janeiro",
    "Graz",
    "São Paulo",
)


@dataclass(frozen=True)
class GeneratedFile:
    """A generated CSV file and its true contents.

    Attributes:
        quote: The quote character. None if no field may contain a quote.
        rows: The fields of each row, without the header.
        about: The kinds of the columns and the dialect, for messages.
        quotes_needed: Whether the file contains quotes, or fields that need them.
    """

    text: str
    delimiter: str
    quote: str | None
    header: tuple[str, ...] | None
    rows: tuple[tuple[str, ...], ...]
    about: str
    quotes_needed: bool


def _sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(3, 9)))


KINDS: dict[str, Callable[[random.Random], str]] = {
    "whole": lambda draw: str(draw.randint(-50, 5000)),
    "real": lambda draw: f"{draw.uniform(-9, 90):.3f}",
    "comma_real": lambda draw: f"{draw.uniform(-9, 90):.2f}".replace(".", ","),
    "date": lambda draw: (
        f"20{draw.randint(10, 25)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
    ),
    "moment": lambda draw: (
        f"2024-{draw.randint(1, 12):02}-11 {draw.randint(0, 23):02}:{draw.randint(0, 59):02}:07"
    ),
    "clock": lambda draw: (
        f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:{draw.randint(0, 59):02}"
    ),
    "truth": lambda draw: draw.choice(("true", "false")),
    "category": lambda draw: draw.choice(("setosa", "virginica", "versicolor")),
    "place": lambda draw: draw.choice(PLACES),
    "word": lambda draw: draw.choice(WORDS) + draw.choice(WORDS),
    "sentence": _sentence,
    "listed": lambda draw: f"{draw.choice(WORDS)}, {draw.choice(WORDS)}",
    "marked": lambda draw: f"{draw.choice(WORDS)}{draw.choice(';|,')} {_sentence(draw)}",
    "lines": lambda draw: f"{_sentence(draw)}\n{_sentence(draw)}",
    "said": lambda draw: f'he said "{draw.choice(WORDS)}" twice',
    "code": lambda draw: f"{draw.choice('ABC')}{draw.randint(100, 999)}",
    "address": lambda draw: f"https://{draw.choice(WORDS)}.example/{draw.randint(1, 99)}",
    "gap": lambda draw: draw.choice(("", "", str(draw.randint(0, 9)))),
}
TABLES = (
    ("whole", "real", "category"),
    ("real", "real", "real", "real", "category"),
    ("whole", "place", "clock", "real"),
    ("date", "clock", "whole"),
    ("moment", "listed", "real"),
    ("whole", "lines", "truth"),
    ("marked", "category", "whole"),
    ("comma_real", "comma_real", "word"),
    ("sentence", "category"),
    ("listed", "listed"),
    ("word", "word", "word"),
    ("code", "place", "said"),
    ("address", "whole"),
    ("clock", "clock"),
    ("clock",),
    ("whole", "gap", "gap", "word"),
    ("listed", "lines", "marked"),
    ("real", "real"),
)
DELIMITERS = (",", ";", "\t", "|", ":", " ")
QUOTES = (
    ('"', csv.QUOTE_MINIMAL),
    ('"', csv.QUOTE_ALL),
    ('"', csv.QUOTE_NONNUMERIC),
    ("'", csv.QUOTE_MINIMAL),
    ("'", csv.QUOTE_ALL),
)


def generated_files(seed: int = 7) -> Iterator[GeneratedFile]:
    """Yields a file for each combination of columns and dialect.

    Each file has 3 to 40 rows.
    """
    draw = random.Random(seed)
    for column_kinds in TABLES:
        for delimiter in DELIMITERS:
            for quote, quoting in QUOTES:
                for has_header in (True, False):
                    yield _make_file(draw, column_kinds, delimiter, quote, quoting, has_header)


def _make_file(
    draw: random.Random,
    kinds: tuple[str, ...],
    delimiter: str,
    quote: str,
    quoting: int,
    has_header: bool,
) -> GeneratedFile:
    rows = tuple(
        tuple(KINDS[kind](draw) for kind in kinds) for _ in range(draw.choice((3, 8, 20, 40)))
    )
    names = tuple(f"{kind}_{draw.choice(WORDS)}" for kind in kinds) if has_header else None
    out = io.StringIO()
    writer = csv.writer(
        out,
        delimiter=delimiter,
        quotechar=quote,
        quoting=quoting,
        lineterminator=draw.choice(("\n", "\r\n")),
    )
    if names is not None:
        writer.writerow(names)
    writer.writerows(
        [[_typed(value) for value in row] for row in rows]
        if quoting == csv.QUOTE_NONNUMERIC
        else rows
    )
    needs_quotes = any(
        mark in value for row in rows for value in row for mark in (delimiter, quote, "\n")
    )
    description = f"{','.join(kinds)} by {delimiter!r} in {quote} {quoting}, {'header' if has_header else 'no header'}"
    return GeneratedFile(
        out.getvalue(),
        delimiter,
        quote,
        names,
        rows,
        description,
        needs_quotes or quoting != csv.QUOTE_MINIMAL,
    )


def _typed(value: str) -> object:
    """Returns a number that `csv` writes as `value`, or else `value`.

    QUOTE_NONNUMERIC writes numbers without quotes.
    """

    class Number(float):
        def __repr__(self) -> str:
            return value

        __str__ = __repr__

    return Number(value) if value.replace(".", "", 1).lstrip("-").isdigit() else value


# The first lines of well-known files, by file name. No file has a header.
UCI = {
    "iris.data": "5.1,3.5,1.4,0.2,Iris-setosa\n4.9,3.0,1.4,0.2,Iris-setosa\n4.7,3.2,1.3,0.2,Iris-setosa\n",
    "wine.data": "1,14.23,1.71,2.43,15.6,127,2.8\n1,13.2,1.78,2.14,11.2,100,2.65\n1,13.16,2.36,2.67,18.6,101,2.8\n",
    "pima.csv": "6,148,72,35,0,33.6,0.627,50,1\n1,85,66,29,0,26.6,0.351,31,0\n8,183,64,0,0,23.3,0.672,32,1\n",
    "sonar.csv": "0.0200,0.0371,0.0428,R\n0.0453,0.0523,0.0843,R\n0.0262,0.0582,0.1099,M\n",
    "adult.data": "39, State-gov, 77516, Bachelors, <=50K\n50, Self-emp, 83311, Bachelors, <=50K\n"
    "38, Private, 215646, HS-grad, >50K\n",
    "mushroom.data": "p,x,s,n,t\ne,x,s,y,t\ne,b,s,w,t\np,x,y,w,t\ne,x,s,g,f\n",
    "car.data": "vhigh,vhigh,2,2,small,low,unacc\nvhigh,vhigh,2,2,small,med,unacc\nhigh,vhigh,2,2,big,low,acc\n",
    "votes.data": "republican,n,y,n,y\nrepublican,n,y,n,y\ndemocrat,?,y,y,?\ndemocrat,n,y,y,n\n",
    "horse.data": "2 1 530101 38.50 66\n1 1 534817 39.2 88\n2 1 530334 38.30 40\n",
    "airports.dat": '1,"Goroka Airport","Goroka","Papua New Guinea","GKA","AYGA",-6.08,145.39,5282,10,"U"\n'
    '2,"Madang Airport","Madang","Papua New Guinea","MAG","AYMD",-5.20,145.78,20,10,"U"\n',
    "airlines.dat": '-1,"Unknown",\\N,"-","N/A",\\N,\\N,"Y"\n1,"Private flight",\\N,"-","N/A","","","Y"\n'
    '2,"135 Airways",\\N,"","GNL","GENERAL","United States","N"\n',
    "planes.dat": '"Aerospatiale 262","ND2","N262"\n"Airbus A300","AB3","A30B"\n"Airbus A310","310","A310"\n',
    "balance.data": "B,1,1,1,1\nR,1,1,1,2\nR,1,1,1,3\nL,2,1,1,1\n",
    "promoters.data": "+,S10,tactagcaat\n+,AMPC,tgctatcctg\n-,AROH,gtactagaga\n",
}
