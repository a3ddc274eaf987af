"""`loadtest capacity`: the largest load at which every criterion holds, per config, as an interval."""
