#!/usr/bin/env python3
"""Check a memory snapshot in the form that PyTorch's viewer opens.

Loads the file with the standard pickle module, checks every key and type that MemoryViz.js
reads, plays the events backwards and forwards as its views do, and compares the sums with the
allocator's statistics.

    check_memory_viz.py FILE [TIER:live=N,peak=N,reserved=N,pending=N ...]

TIER is 0 (device) or 1 (host); all numbers are bytes. Exit 0 when all is right.
"""
import pickle
import pickletools
import sys

# What the viewer's own unpickler knows, and of that what belongs to protocol 2.
VIEWER_OPCODES = {
    "PROTO", "STOP", "MARK", "EMPTY_DICT", "SETITEMS", "SETITEM", "EMPTY_LIST", "APPENDS",
    "APPEND", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINPUT", "BINGET",
    "LONG_BINPUT", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "BINFLOAT", "LIST", "DICT"}
MOST_EXACT = 2 ** 53  # the viewer's numbers are doubles
LIVES = ("alloc", "free_requested", "free_completed")
CHANGES = ("segment_map", "segment_unmap")


class Wrong(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Wrong(" ".join(str(part) for part in what))


def check_number(owner, key):
    check(key in owner, "no", key, "in", owner)
    value = owner[key]
    check(type(value) is int and 0 <= value < MOST_EXACT, key, "is", value, "in", owner)
    return value


def check_frames(owner, wanted):
    check(type(owner.get("frames")) is list, "frames in", owner)
    check(len(owner["frames"]) >= (1 if wanted else 0), "no frames in", owner)
    for frame in owner["frames"]:
        check(type(frame.get("name")) is str and frame["name"] != "", "name in", frame)
        check(type(frame.get("filename")) is str, "filename in", frame)
        check_number(frame, "line")


def check_opcodes(data):
    for opcode, argument, _ in pickletools.genops(data):
        check(opcode.name in VIEWER_OPCODES, "the viewer does not know", opcode.name)
        check(opcode.proto <= 2, opcode.name, "is not of protocol 2")
        if opcode.name == "PROTO":
            check(argument == 2, "protocol", argument)


def check_segment(segment, n_devices):
    for key in ("address", "total_size", "device", "stream", "allocated_size", "active_size",
                "requested_size"):
        check_number(segment, key)
    check(segment["device"] < n_devices, "device", segment["device"])
    check(segment["segment_type"] in ("small", "large"), segment["segment_type"])
    check(segment["is_expandable"] is True, "is_expandable")
    check_frames(segment, False)
    address, active, allocated, requested = segment["address"], 0, 0, 0
    for block in segment["blocks"]:
        check(check_number(block, "address") == address, "a gap before", block)
        check(check_number(block, "size") > 0, "an empty block", block)
        check(check_number(block, "requested_size") <= block["size"], "too small:", block)
        check(block["state"] in ("active_allocated", "active_pending_free", "inactive"), block)
        check_frames(block, block["state"] != "inactive")
        address += block["size"]
        if block["state"] != "inactive":
            active += block["size"]
            requested += block["requested_size"]
        if block["state"] == "active_allocated":
            allocated += block["size"]
    check(address == segment["address"] + segment["total_size"], "blocks do not fill", segment)
    check((allocated, active, requested) == (segment["allocated_size"], segment["active_size"],
                                             segment["requested_size"]), "sums of", segment)


def check_event(event):
    check(event["action"] in LIVES + CHANGES + ("snapshot",), "action", event["action"])
    for key in ("addr", "size", "stream", "time_us"):
        check_number(event, key)
    check_frames(event, event["action"] in LIVES)
    if event["action"] in LIVES:
        check(event["size"] > 0 and type(event["category"]) is str, event)


class Extents:
    """Stretches of addresses, merged where they touch, as expandable segments are."""

    def __init__(self, stretches):
        self.stretches = sorted(stretches)

    def add(self, address, size):
        end = address + size
        check(not any(a < end and address < b for a, b in self.stretches), "mapped twice", address)
        touching = [s for s in self.stretches if s[1] == address or s[0] == end]
        for stretch in touching:
            self.stretches.remove(stretch)
            address, end = min(address, stretch[0]), max(end, stretch[1])
        self.stretches = sorted(self.stretches + [(address, end)])

    def remove(self, address, size):
        end = address + size
        around = [s for s in self.stretches if s[0] <= address and end <= s[1]]
        check(len(around) == 1, "not mapped:", address)
        self.stretches.remove(around[0])
        rest = [(around[0][0], address), (end, around[0][1])]
        self.stretches = sorted(self.stretches + [s for s in rest if s[0] < s[1]])

    def holds(self, address, size):
        return any(a <= address and address + size <= b for a, b in self.stretches)

    def total(self):
        return sum(b - a for a, b in self.stretches)


def play_backwards(segments, events):
    """As the view of the allocator's state does: every block lies in a segment at all times."""
    mapped = Extents((s["address"], s["address"] + s["total_size"]) for s in segments)
    blocks = {b["address"]: [b["requested_size"], b["state"] == "active_pending_free"]
              for s in segments for b in s["blocks"] if b["state"] != "inactive"}
    for event in reversed(events):
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            check(blocks.pop(address, [None])[0] == size, "not allocated in the end", event)
        elif event["action"] == "free_requested":
            check(address in blocks and blocks[address][1], "not pending", event)
            blocks[address][1] = False
        elif event["action"] == "free_completed":
            check(address not in blocks, "freed while another lives", event)
            check(mapped.holds(address, size), "not in a segment", event)
            blocks[address] = [size, True]
        elif event["action"] == "segment_map":
            mapped.remove(address, size)
            check(all(mapped.holds(a, b[0]) for a, b in blocks.items()
                      if address <= a < address + size), "a block loses its segment", event)
        elif event["action"] == "segment_unmap":
            mapped.add(address, size)
    check(not blocks and not mapped.stretches, "something was there before the first event")


def play_forwards(events):
    """Live bytes: in the end, at most; and what is mapped and pending in the end."""
    live = peak = reserved = pending = 0
    last_time = 0
    for event in events:
        check(event["time_us"] >= last_time, "time goes back at", event)
        last_time = event["time_us"]
        sign = {"alloc": 1, "free_requested": -1}.get(event["action"], 0) * event["size"]
        live += sign
        # What is live at time 0 was not allocated one by one.
        if event["time_us"] > 0:
            peak = max(peak, live, live - sign)
        pending += {"free_requested": 1, "free_completed": -1}.get(event["action"],
                                                                   0) * event["size"]
        reserved += {"segment_map": 1, "segment_unmap": -1}.get(event["action"], 0) * event["size"]
    return {"live": live, "peak": peak, "reserved": reserved, "pending": pending}


def check_file(path, expected):
    with open(path, "rb") as file:
        data = file.read()
    check_opcodes(data)
    snapshot = pickle.loads(data)
    check(type(snapshot) is dict and type(snapshot["segments"]) is list, "segments")
    traces = snapshot["device_traces"]
    check(type(traces) is list and len(traces) == 2, "device_traces")
    for segment in snapshot["segments"]:
        check_segment(segment, len(traces))
    categories = set()
    for device, events in enumerate(traces):
        for event in events:
            check_event(event)
            if "category" in event:
                categories.add(event["category"])
        segments = [s for s in snapshot["segments"] if s["device"] == device]
        play_backwards(segments, events)
        sums = play_forwards(events)
        check(sums["reserved"] == sum(s["total_size"] for s in segments), "reserved", sums)
        active = [b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
        check(sums["live"] == sum(b["requested_size"] for b in active), "live", sums)
        for key, value in expected.get(device, {}).items():
            check(sums[key] == value, "tier", device, key, "is", sums[key], "and not", value)
        print(path, "tier", device, len(events), "events", len(segments), "segments", sums)
    check("unknown" in categories, "no category is unknown")


def main():
    expected = {}
    for argument in sys.argv[2:]:
        tier, _, values = argument.partition(":")
        pairs = (value.split("=") for value in values.split(","))
        expected[int(tier)] = {key: int(value) for key, value in pairs}
    try:
        check_file(sys.argv[1], expected)
    except Wrong as wrong:
        sys.exit(f"{sys.argv[1]}: {wrong}")


main()
