"""Networks of torch's own layers that are measured or made into cards; torch is imported only where one is built."""
