"""Records of given numbers to columns of Arrow, read and decoded on threads ahead of the consumer."""
