"""The sockets of gpusaged: who may connect, what a connection may send, and who answers a line."""
