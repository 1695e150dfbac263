"""Which rank of a synchronised job makes the others wait, from what its ranks did: the diagnosis of a timeline."""
