"""Keras on PyTorch: a functional model in a loop of the program's own."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch
from keras import layers

inputs = keras.Input((20,))
model = keras.Model(inputs, layers.Dense(4)(layers.Dense(32, activation="relu")(inputs)))
optimizer, loss_function = keras.optimizers.Adam(1e-3), keras.losses.MeanSquaredError()
for _ in range(6):
    model.zero_grad()
    for _ in range(2):
        loss_function(torch.zeros(24, 4), model(torch.randn(24, 20))).backward()
    weights = list(model.trainable_weights)
    with torch.no_grad():
        optimizer.apply([weight.value.grad for weight in weights], weights)
