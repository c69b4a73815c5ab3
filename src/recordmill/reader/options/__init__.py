"""The options of training, declared once: order, form of a batch, images, memory; and their checks."""
