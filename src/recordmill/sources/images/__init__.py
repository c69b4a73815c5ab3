"""Source of image files, with labels from folders, labels files and box annotations."""
