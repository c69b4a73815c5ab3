"""Export of TFRecord files to other file formats, without Beam."""
