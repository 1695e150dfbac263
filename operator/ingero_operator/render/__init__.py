"""From resources to manifests. Law of the room: pure, fresh containers each time, `None` for what is not wanted."""
