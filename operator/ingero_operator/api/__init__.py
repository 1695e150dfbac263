"""The custom resources as types. Values only: nothing here reads, writes or takes the time."""
