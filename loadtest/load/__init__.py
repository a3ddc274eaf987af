"""Load room: one cell in, request records and live histograms out. The only room that may import locust or gevent.

This file imports nothing, so that the pure modules of the room (records, parse, hdr) can be used without gevent.
"""
