"""The source of image files: their bytes, with the labels that folders or a labels file say."""
