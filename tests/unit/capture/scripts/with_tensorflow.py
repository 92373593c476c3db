"""A step of TensorFlow, which is not PyTorch."""

import tensorflow as tf

weights, x = tf.Variable(tf.ones((20, 4))), tf.ones((16, 20))
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x @ weights)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
