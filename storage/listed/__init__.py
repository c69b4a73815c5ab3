"""What a listing holds, however long it is: rows on a disk, sorted by pieces that fit into memory, and input files."""
