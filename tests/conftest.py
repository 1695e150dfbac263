"""What holds for every test: no property is timed on the wall clock."""

from hypothesis import settings

settings.register_profile("ingero", deadline=None)
settings.load_profile("ingero")
