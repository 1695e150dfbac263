"""The custom resources as types. Law of the room: values only, nothing here reads, writes or knows the time."""
