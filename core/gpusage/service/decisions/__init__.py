"""How a request gets its response: from the cache, from the engine in its thread, or without it when time is over."""
