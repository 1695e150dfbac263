"""Which rank do collectives wait for: points in, grouped by collective, late rank out. The statistics are pure."""
