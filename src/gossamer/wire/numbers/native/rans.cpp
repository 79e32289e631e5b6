// Range coding of whole numbers (rANS): the loops of coder.py, which has them in NumPy too. Both write the same bytes.
#include <cstdint>

namespace {
constexpr int BITS = 14;             // frequencies of a table add up to 2 ** BITS
constexpr uint32_t LOW = 1u << 16;   // states are at least that, and have 32 bits
constexpr uint32_t SLOT = (1u << BITS) - 1;
}  // namespace

extern "C" {

// The version of the code, so that a library of other sources is not used.
int32_t gossamer_levels_version() { return 1; }

// Encodes symbols from the last to the first, symbol i into state i % lanes. Words are written from the end of their
// room backwards. Returns how many there are, or -1 if the room is too small.
int64_t gossamer_levels_encode(const uint16_t* symbols, int64_t count, const uint32_t* frequencies,
                               const uint32_t* starts, uint32_t* states, int64_t lanes, uint16_t* words, int64_t room) {
  for (int64_t lane = 0; lane < lanes; lane++) states[lane] = LOW;
  int64_t place = room;
  int64_t lane = count ? (count - 1) % lanes : 0;
  for (int64_t i = count - 1; i >= 0; i--) {
    const uint32_t frequency = frequencies[symbols[i]];
    uint32_t state = states[lane];
    if (state >= (uint64_t)frequency << (32 - BITS)) {
      if (!place) return -1;
      words[--place] = (uint16_t)state;
      state >>= 16;
    }
    states[lane] = ((state / frequency) << BITS) + state % frequency + starts[symbols[i]];
    lane = lane ? lane - 1 : lanes - 1;
  }
  return room - place;
}

// The inverse. `slots` has a symbol for each of 2 ** BITS slots. Returns how many words were read, or -1 if there are
// too few; it never reads more than there are.
int64_t gossamer_levels_decode(const uint16_t* words, int64_t room, uint32_t* states, int64_t lanes,
                               const uint16_t* slots, const uint32_t* frequencies, const uint32_t* starts,
                               uint16_t* symbols, int64_t count) {
  int64_t place = 0;
  int64_t lane = 0;
  for (int64_t i = 0; i < count; i++) {
    uint32_t state = states[lane];
    const uint32_t slot = state & SLOT;
    const uint16_t symbol = slots[slot];
    symbols[i] = symbol;
    state = frequencies[symbol] * (state >> BITS) + slot - starts[symbol];
    if (state < LOW) {
      if (place == room) return -1;
      state = state << 16 | words[place++];
    }
    states[lane] = state;
    lane = lane + 1 == lanes ? 0 : lane + 1;
  }
  return place;
}

}  // extern "C"
