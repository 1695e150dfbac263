"""Which NIC, link or switch makes collectives slow, from how long they last after their last rank has arrived."""
