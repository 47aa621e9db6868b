"""Seeds of random streams."""

from gflownet.workers.process import stream_seed


def test_streams_of_a_seed_are_different():
    streams = [
        (0,),
        (0, 0),
        (0, 1),
        (0, 3),
        (0, 3, 0),
        (0, 3, 0, 0, 0),
        (2**32,),
        (2**32, 0),
        (2**62, 1, 0),
        (2**62, 1),
    ]
    assert len({stream_seed(*each) for each in streams}) == len(streams)
    assert stream_seed(5, 1) == stream_seed(5, 1)
