"""Keras on PyTorch: a model with images, a dropout and a normalization, trained by `fit`."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from keras import layers

keras.mixed_precision.set_global_policy("mixed_bfloat16")
blocks = [layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.1)]
model = keras.Sequential([keras.Input((12, 12, 1)), *blocks, layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])
draw = np.random.default_rng()
x, y = draw.random((128, 12, 12, 1), dtype="float32"), draw.integers(0, 10, (128,))
model.fit(x, y, batch_size=16, epochs=1, validation_split=0.25, verbose=0)
