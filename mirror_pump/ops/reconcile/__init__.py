"""`mirror-pump reconcile`: continues a mirror whose database lost its slot or part of its history."""
