"""A listing contains every input file once, in a fixed order.

It reports ignored, followed and refused files.
"""

import os
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from kit import image_samples

from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.storage.listing import Listing, list_inputs


def make(root: Path, *names: str, content: str = "x") -> Path:
    """Creates files below `root` and returns `root`."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def names(listing: Listing) -> list[str]:
    return [file.name for file in listing.files]


def test_folder_lists_every_file_once_in_the_order_of_utf8_names(tmp_path: Path) -> None:
    """Plans, manifests and record identities rely on this order."""
    expected = ["B.txt", "a.txt", "a/b.txt", "a/é.txt", "z.txt", "ÿ.txt", "ａ.txt", "😀.txt"]
    shuffled = random.Random(1).sample(expected, len(expected))
    listing = list_inputs([str(make(tmp_path / "in", *shuffled))])
    assert names(listing) == expected == sorted(expected, key=str.encode)
    assert [Path(file.path).read_text() for file in listing.files] == ["x"] * len(expected)
    assert all(file.root == 0 and file.stat.size_bytes == 1 for file in listing.files)


def test_listing_does_not_depend_on_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "in", "a/1.txt", "2.txt")
    monkeypatch.chdir(tmp_path)
    relative = list_inputs(["in"])
    monkeypatch.chdir(tmp_path / "in" / "a")
    assert list_inputs([".."]).files == relative.files == list_inputs([str(tmp_path / "in")]).files


def test_clutter_is_ignored_counted_and_noted(tmp_path: Path) -> None:
    clutter = ".DS_Store d/Thumbs.db d/desktop.ini __MACOSX/a.csv a.csv~ b.tmp .a.csv.crc c.crc _SUCCESS .git/config"
    make(tmp_path, "a.csv", *clutter.split())
    make(tmp_path, "marker", "empty.csv", content="")
    listing = list_inputs([str(tmp_path)], data_extensions=("csv",))
    # The empty table is kept, because its reader decides whether it is an error.
    assert names(listing) == ["a.csv", "empty.csv"]
    assert listing.ignored == {"hidden": 3, "temporary": 3, "marker": 4, "empty": 1}
    assert any(
        note.startswith("ignored 4 marker: ") and "Thumbs.db" in note for note in listing.notes
    )
    assert "ignored 1 empty: marker" in listing.notes


def test_clutter_that_is_named_as_an_input_is_listed(tmp_path: Path) -> None:
    make(tmp_path, ".hidden.csv", "b.tmp")
    assert names(list_inputs([str(tmp_path / ".hidden.csv"), str(tmp_path / "b.tmp")])) == [
        ".hidden.csv",
        "b.tmp",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "br[1].txt",
        "a*b.txt",
        "who?.txt",
        "[a-z]",
        "{x}.txt",
        "@list.txt",
        "-f.txt",
        "line\nbreak.txt",
        " blank ",
    ],
)
def test_existing_file_with_wildcard_characters_is_found_by_its_name(
    tmp_path: Path, name: str
) -> None:
    make(tmp_path, name, "br1.txt", "aXb.txt", "who1.txt", "q")
    listing = list_inputs([str(tmp_path / name)])
    assert names(listing) == [name]
    assert [listing.is_explicit(file) for file in listing.files] == [True]


def test_existing_folder_with_wildcard_characters_is_found_by_its_name(tmp_path: Path) -> None:
    make(tmp_path, "data[1]/a.txt", "data1/b.txt")
    assert names(list_inputs([str(tmp_path / "data[1]")])) == ["a.txt"]
    assert names(list_inputs([str(tmp_path / "data[1]" / "*.txt")])) == ["a.txt"]
    assert names(list_inputs([str(tmp_path / "data[12]" / "*.txt")])) == ["data1/b.txt"]
    with pytest.raises(UsageError, match="no file matches"):
        list_inputs([str(tmp_path / "data[1]" / "nope.txt")])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["a.txt", "b.txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
        ("[a]*", ["a.txt"]),
        ("[!a].txt", ["b.txt"]),
        ("d/*/*.txt", ["e/1.txt", "f/2.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "d/e/1.txt", "d/e/g/3.txt", "d/f/2.txt"]),
        ("d/**", ["e/1.txt", "e/g/3.txt", "f/2.txt"]),
        ("**/e/*.txt", ["d/e/1.txt"]),
        ("d/[ef]", ["e/1.txt", "e/g/3.txt", "f/2.txt"]),
        ("d//e/*", ["1.txt", "g/3.txt"]),
        (".h*", [".hidden.txt"]),
        ("**/.h/*", ["d/.h/4.txt"]),
    ],
)
def test_glob_matches_like_a_shell(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    """`*` matches no leading dot, and a folder that matches adds its contents."""
    make(
        tmp_path,
        "a.txt",
        "b.txt",
        "c.csv",
        "d/e/1.txt",
        "d/e/g/3.txt",
        "d/f/2.txt",
        ".hidden.txt",
        "d/.h/4.txt",
    )
    assert names(list_inputs([f"{tmp_path}/{pattern}"])) == expected


def test_names_of_a_glob_are_relative_to_the_folder_before_its_first_wildcard(
    tmp_path: Path,
) -> None:
    make(tmp_path, "in/x/1.txt", "in/y/1.txt")
    assert names(list_inputs([str(tmp_path / "in" / "*" / "1.txt")])) == ["x/1.txt", "y/1.txt"]


def test_paths_of_a_list_are_relative_to_the_folder_of_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "data", "a.txt", "sub/b.txt", "sub/c [1].txt", "d1.csv", "d2.csv")
    (tmp_path / "data" / "list.txt").write_bytes(
        b"\xef\xbb\xbfsub/b.txt\r\n\na.txt\nsub/c [1].txt\nd?.csv\n"
    )
    make(tmp_path / "elsewhere", "a.txt", content="wrong")
    monkeypatch.chdir(tmp_path / "elsewhere")
    listing = list_inputs(["@../data/list.txt"])
    assert names(listing) == ["a.txt", "d1.csv", "d2.csv", "sub/b.txt", "sub/c [1].txt"]
    assert {Path(file.path).read_text() for file in listing.files} == {"x"}
    assert [listing.is_explicit(file) for file in listing.files] == [True, False, False, True, True]
    (tmp_path / "data" / "list.txt").write_text("a.txt\nd1.csv")
    listing = list_inputs(["@../data/list.txt", "../data/sub"])
    assert [listing.is_explicit(file) for file in listing.files] == [True, True, False, False]


def test_names_of_listed_files_elsewhere_are_relative_to_their_common_folder(
    tmp_path: Path,
) -> None:
    make(tmp_path, "far/x/1.txt", "far/y/2.txt", "lists/empty")
    (tmp_path / "lists" / "l.txt").write_text(f"{tmp_path}/far/x/1.txt\n../far/y/2.txt\n")
    assert names(list_inputs([f"@{tmp_path}/lists/l.txt"])) == ["x/1.txt", "y/2.txt"]


def test_several_inputs_keep_their_order(tmp_path: Path) -> None:
    make(tmp_path, "b/1.txt", "a/1.txt")
    listing = list_inputs([str(tmp_path / "b"), str(tmp_path / "a")])
    assert [(file.root, file.name) for file in listing.files] == [(0, "1.txt"), (1, "1.txt")]
    assert [root.label for root in listing.roots] == ["b", "a"]


# -- links
# ------------------------------------------------------------------------------------------------
def test_link_out_of_the_input_folder_is_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt", "secret/passwd")
    (tmp_path / "in" / "evil.txt").symlink_to(tmp_path / "secret" / "passwd")
    with pytest.raises(
        UsageError,
        match=r"evil\.txt is a link out of the folder, to .*/secret/passwd: follow_links=True allows it",
    ):
        list_inputs([str(tmp_path / "in")])
    assert names(list_inputs([str(tmp_path / "in")], follow_links=True)) == ["a.txt", "evil.txt"]


def test_linked_folder_outside_is_refused_unless_follow_links(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt", "out/deep/b.txt")
    (tmp_path / "in" / "more").symlink_to(tmp_path / "out")
    with pytest.raises(UsageError, match="more is a link out of the folder"):
        list_inputs([str(tmp_path / "in")])
    assert names(list_inputs([str(tmp_path / "in")], follow_links=True)) == [
        "a.txt",
        "more/deep/b.txt",
    ]


def test_link_to_a_folder_with_the_same_prefix_is_outside(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt", "in2/b.txt")
    (tmp_path / "in" / "l.txt").symlink_to(tmp_path / "in2" / "b.txt")
    with pytest.raises(UsageError, match="link out of the folder"):
        list_inputs([str(tmp_path / "in")])


def test_links_inside_the_input_folder_are_followed(tmp_path: Path) -> None:
    make(tmp_path, "all/1.txt", "cat/x.txt")
    (tmp_path / "cat" / "1.txt").symlink_to("../all/1.txt")
    (tmp_path / "latest").symlink_to("all")
    listing = list_inputs([str(tmp_path)])
    assert names(listing) == ["all/1.txt", "cat/1.txt", "cat/x.txt"]
    assert listing.ignored == {"link to a folder that is read anyway": 1}


def test_loops_of_links_end(tmp_path: Path) -> None:
    make(tmp_path, "in/a/b/1.txt")
    (tmp_path / "in" / "a" / "b" / "up").symlink_to(tmp_path / "in" / "a")
    (tmp_path / "in" / "a" / "self").symlink_to(tmp_path / "in")
    assert names(list_inputs([str(tmp_path / "in")])) == ["a/b/1.txt"]
    listing = list_inputs([str(tmp_path / "in")], follow_links=True)
    assert names(listing) == ["a/b/1.txt"]
    assert listing.ignored == {"link to a folder around it": 2}
    assert names(list_inputs([str(tmp_path / "in" / "**" / "*.txt")], follow_links=True)) == [
        "a/b/1.txt"
    ]


def test_loops_of_links_through_outside_folders_end(tmp_path: Path) -> None:
    make(tmp_path, "in/1.txt", "x/2.txt", "y/3.txt")
    (tmp_path / "in" / "x").symlink_to(tmp_path / "x")
    (tmp_path / "x" / "y").symlink_to(tmp_path / "y")
    (tmp_path / "y" / "x").symlink_to(tmp_path / "x")
    assert names(list_inputs([str(tmp_path / "in")], follow_links=True)) == [
        "1.txt",
        "x/2.txt",
        "x/y/3.txt",
    ]


def test_two_inputs_that_name_one_file_by_a_link_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "in/a.txt", "in/c.txt", "other/d.txt")
    (tmp_path / "in" / "b.txt").symlink_to("a.txt")
    (tmp_path / "list.txt").write_text("in/a.txt\nin/b.txt\n")
    for name in ("in", "in/*.txt", "in/a.txt", "@list.txt"):
        list_inputs([f"@{tmp_path / name[1:]}" if name[0] == "@" else str(tmp_path / name)])
    with pytest.raises(
        UsageError,
        match=r"a\.txt is named by '.*a\.txt' and '.*b\.txt': its records would occur",
    ):
        list_inputs([str(tmp_path / "in" / "a.txt"), str(tmp_path / "in" / "b.txt")])
    (tmp_path / "other" / "e.txt").symlink_to(tmp_path / "in" / "a.txt")
    with pytest.raises(
        UsageError,
        match=r"a\.txt is named by '.*in' and '.*other': its records would occur twice",
    ):
        list_inputs([str(tmp_path / "in"), str(tmp_path / "other")], follow_links=True)


@pytest.mark.parametrize("target", ["gone.txt", "dangling"])
def test_dangling_link_is_refused_by_name(tmp_path: Path, target: str) -> None:
    make(tmp_path, "a.txt")
    (tmp_path / "dangling").symlink_to(target)  # a missing file, or the link itself
    for inputs in ([str(tmp_path)], [str(tmp_path / "d*")], [str(tmp_path / "dangling")]):
        with pytest.raises(UsageError, match="dangling.*" + target):
            list_inputs(inputs, follow_links=True)


def test_input_that_is_a_link_is_accepted(tmp_path: Path) -> None:
    make(tmp_path, "real/a.txt")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").symlink_to("real/a.txt")
    assert names(list_inputs([str(tmp_path / "link")])) == ["a.txt"]
    assert names(list_inputs([str(tmp_path / "file")])) == ["file"]


# -- refusals
# ------------------------------------------------------------------------------------------------
def test_missing_or_empty_input_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "full/.DS_Store")
    (tmp_path / "void").mkdir()
    cases = {
        str(tmp_path / "nope.csv"): r"no such file or folder",
        str(tmp_path / "*.csv"): r"\*\.csv: no file matches",
        str(tmp_path / "nope" / "*.csv"): r"there is no folder .*nope",
        str(tmp_path / "void"): r"void: no file in this folder",
        str(
            tmp_path / "full"
        ): r"full: no file in this folder that holds data \(ignored 1 hidden: \.DS_Store\)",
        f"@{tmp_path}/nope.txt": r"the list .* can't be read: No such file",
        "": "a path is empty",
        "viewfs://bucket/x.csv": r"viewfs:// is not supported",
        "ftp://bucket/*.csv": r"ftp:// is not supported",
    }
    for name, message in cases.items():
        with pytest.raises(UsageError, match=message):
            list_inputs([name])
    with pytest.raises(UsageError, match="no INPUT"):
        list_inputs([])


def test_error_in_a_list_has_its_line(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    (tmp_path / "list").write_text("a.txt\nb.txt\n")
    with pytest.raises(
        UsageError, match=r"list, line 2: .*no such file or folder.*relative to the list's folder"
    ):
        list_inputs([f"@{tmp_path}/list"])
    (tmp_path / "list").write_text("\n \n")
    with pytest.raises(UsageError, match="the list is empty"):
        list_inputs([f"@{tmp_path}/list"])


@pytest.mark.parametrize("case", ["two inputs", "file in folder", "list"])
def test_file_named_twice_is_refused(tmp_path: Path, case: str) -> None:
    make(tmp_path, "in/a.txt", "in/b.txt")
    (tmp_path / "list").write_text("in/a.txt\nin/b.txt\n./in/a.txt\n")
    folder = str(tmp_path / "in")
    inputs = {
        "two inputs": [folder, folder + "/"],
        "file in folder": [folder, folder + "/a.txt"],
        "list": [f"@{tmp_path}/list"],
    }[case]
    with pytest.raises(
        UsageError,
        match=r"a\.txt is named .*twice|a\.txt is named by '.*' and '.*': its records would occur twice",
    ):
        list_inputs(inputs)


def test_file_name_that_is_not_utf8_is_refused_readably(tmp_path: Path) -> None:
    make(tmp_path, "ok.txt")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))).write_text("x")
    with pytest.raises(UsageError, match=r"1 file name\(s\) are not UTF-8.*caf\\xe9\.txt") as error:
        list_inputs([str(tmp_path)])
    str(error.value).encode()  # the message can be printed


def test_pipes_and_sockets_are_never_opened(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    listing = list_inputs([str(tmp_path)])
    assert names(listing) == ["a.txt"]
    assert listing.ignored == {"neither file nor folder": 1}
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        list_inputs([str(tmp_path / "pipe.txt")])


UNREADABLE = """
import os, sys, tempfile
from recordmill.storage.listing import list_inputs
from recordmill.base.errors import UsageError
root = sys.argv[1]
if os.getuid() == 0:
    os.setuid(65534)  # root reads everything
try:
    list_inputs([root])
except UsageError as error:
    print(error)
"""


def test_folder_that_cannot_be_listed_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as folder:  # other users can't enter the folders of pytest
        root = Path(folder)
        root.chmod(0o755)
        make(root, "a.txt", "locked/b.txt")
        (root / "locked").chmod(0)
        command = [sys.executable, "-c", UNREADABLE, str(root)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=True)
        finally:
            (root / "locked").chmod(0o755)
    assert result.stdout.strip() == f"{root}/locked: this folder can't be listed: Permission denied"


def test_very_deep_folders_are_listed(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(400):
        deep = deep / "d"
    os.makedirs(deep)
    (deep / "a.txt").write_text("x")
    assert names(list_inputs([str(tmp_path)])) == ["d/" * 400 + "a.txt"]
    assert names(list_inputs([str(tmp_path / "**" / "*.txt")])) == ["d/" * 400 + "a.txt"]


@pytest.mark.parametrize("case", ["list", "labels", "schema", "transform", "function", "device"])
def test_pipe_or_device_as_a_small_file_is_refused_without_waiting(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process writes into the pipe, so a reader would wait forever."""
    pipe = tmp_path / {"labels": "a.csv", "transform": "a.yaml", "function": "a.py"}.get(
        case, "pipe"
    )
    os.mkfifo(pipe)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(
        image_samples.encode_image("PNG", image_samples.picture())
    )
    source = {"list": f"@{pipe}", "device": "@/dev/zero"}.get(case, str(tmp_path / "in"))
    options = [] if source[0] == "@" else [f"--{case.replace('function', 'transform')}", str(pipe)]
    assert main(["build", source, "--out", str(tmp_path / "out"), "--quiet", *options]) in (1, 2)
    assert "not a regular file" in capsys.readouterr().err


def test_system_folders_are_ignored_in_folders_and_archives(tmp_path: Path) -> None:
    source = tmp_path / "in"
    names = ("@eaDir", "#recycle", "$RECYCLE.BIN", "lost+found", "__pycache__", "@Recycle")
    for folder in (*names, "System Volume Information", "cat"):
        (source / folder).mkdir(parents=True)
        (source / folder / "a.png").write_bytes(b"x")
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for path in sorted(source.rglob("*.png")):
            archive.write(path, path.relative_to(source))
    for root in (source, tmp_path / "in.zip"):
        listing = list_inputs([str(root)])
        assert list(listing.files.names()) == ["cat/a.png"]
        assert listing.ignored == {"of the system": 7}
