"""Train a small image classifier for one epoch on a data set that `recordmill build` has made of class folders.

    python examples/train_keras.py OUT [MODEL.keras]

The reader gives (image, label) batches, shuffled, decoded in TensorFlow's graph; Keras knows the number of steps from the manifest.
"""

from __future__ import annotations

import sys

import keras
import recordmill

BATCH_SIZE = 32


def main(out: str, save_to: str | None = None) -> None:
    train = recordmill.open(out, split="train", columns=["image", "label"])
    classes = train.schema["label"].classes or ()
    options = {"batch_size": BATCH_SIZE, "label": "label", "decode_images": True, "resize": (8, 8), "channels": 1}
    batches = train.to_tf(shuffle=True, seed=7, **options)
    held_out = recordmill.open(out, split="validation", columns=["image", "label"]).to_tf(shuffle=False, **options)

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(len(classes)),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    print(f"{len(train):,} images of {len(classes)} classes: {int(batches.cardinality())} steps of {BATCH_SIZE}")
    history = model.fit(batches, validation_data=held_out, epochs=1, verbose=2)
    accuracy = history.history["val_accuracy"][-1]
    print(f"accuracy on the validation split after one epoch: {accuracy:.1%}")
    if save_to is not None:
        model.save(save_to)
        print(f"model saved: {save_to}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
