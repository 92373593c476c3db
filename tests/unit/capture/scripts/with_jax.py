"""A step of JAX, which is not PyTorch."""

import jax
import jax.numpy as jnp

weights, x = jnp.ones((20, 4)), jnp.ones((16, 20))
for _ in range(3):
    weights -= 0.1 * jax.grad(lambda w: (x @ w).sum())(weights)
