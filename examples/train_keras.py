"""Trains a small image classifier for one epoch.

    python examples/train_keras.py OUT [MODEL.keras]

OUT is a data set that `recordmill build` has made from class folders. The reader yields shuffled
(image, label) batches and decodes the images in its threads. Keras knows the number of steps,
because the reader takes it from the manifest.
"""

from __future__ import annotations

import sys

import keras

import recordmill

BATCH_SIZE = 32


def main(out: str, save_to: str | None = None) -> None:
    keras.utils.set_random_seed(7)
    train = recordmill.open(out, split="train", columns=["image", "label"])
    classes = train.schema["label"].classes or ()
    batches = train.to_tf(
        BATCH_SIZE, shuffle=True, seed=7, label="label", decode_images=(8, 8), channels=1
    )
    validation = recordmill.open(out, split="validation", columns=["image", "label"])
    held_out = validation.to_tf(
        BATCH_SIZE, shuffle=False, label="label", decode_images=(8, 8), channels=1
    )

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(len(classes)),
        ]
    )
    model.compile(
        "adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    print(
        f"{len(train):,} images of {len(classes)} classes: {int(batches.cardinality())} steps of {BATCH_SIZE}"
    )
    # The reader has already shuffled the records.
    history = model.fit(batches, validation_data=held_out, epochs=1, verbose=2, shuffle=False)
    accuracy = history.history["val_accuracy"][-1]
    if save_to is not None:
        model.save(save_to)
        print(f"model saved: {save_to}")
    print(f"accuracy on the validation split after one epoch: {accuracy:.1%}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
