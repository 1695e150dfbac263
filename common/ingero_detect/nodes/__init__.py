"""Which node is slower than it should be: the detector, tick by tick, from the rates that nodes report."""
