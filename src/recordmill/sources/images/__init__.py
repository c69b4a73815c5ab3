"""Image files in, their bytes as records out, with the labels that folders or a labels file say."""
