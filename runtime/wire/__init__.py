"""Messages between the driver and the lanes' processes: operations, their encoding, and the channel."""
