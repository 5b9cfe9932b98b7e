/* Keyed BLAKE2b (RFC 7693) with digests of 16 bytes, as hashlib makes them: asking hashlib for one takes longer. */

#ifndef KVSCOPE_BLAKE2_H
#define KVSCOPE_BLAKE2_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { DIGEST = 16, CHUNK = 128 };

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};
static const uint8_t sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

/* What was hashed so far: whole chunks. */
typedef struct {
    uint64_t h[8], hashed;
} Hash;

static inline uint64_t
turned(uint64_t x, int by)
{
    return x >> by | x << (64 - by);
}

#define MIX(a, b, c, d, x, y) \
    a += b + (x), d = turned(d ^ a, 32), c += d, b = turned(b ^ c, 24); \
    a += b + (y), d = turned(d ^ a, 16), c += d, b = turned(b ^ c, 63)

/* One more chunk, of which `size` bytes are the message's; `last` has all bits set for the last one, else none. */
static void
compress(Hash *hash, const uint8_t *chunk, size_t size, uint64_t last)
{
    uint64_t v[16], m[16];
    memcpy(m, chunk, sizeof(m));
    memcpy(v, hash->h, sizeof(hash->h));
    memcpy(v + 8, initial, sizeof(initial));
    hash->hashed += size;
    v[12] ^= hash->hashed;
    v[14] ^= last;
#pragma GCC unroll 12 /* so that what is mixed with what is known at compile time */
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = sigma[round % 10];
        MIX(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
        MIX(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
        MIX(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
        MIX(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
        MIX(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
        MIX(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
        MIX(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
        MIX(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) {
        hash->h[i] ^= v[i] ^ v[i + 8];
    }
}

static void
begin_hash(Hash *hash, const char *key, size_t key_size)
{
    uint8_t chunk[CHUNK] = {0};
    memcpy(hash->h, initial, sizeof(initial));
    hash->h[0] ^= 0x01010000 ^ key_size << 8 ^ DIGEST;
    hash->hashed = 0;
    if (key_size > 0) { /* every message has a byte at least: the chunk of the key is never the last */
        memcpy(chunk, key, key_size);
        compress(hash, chunk, CHUNK, 0);
    }
}

/* The digest of a message behind what was begun. */
static void
end_hash(Hash hash, const uint8_t *message, size_t size, uint8_t *digest)
{
    uint8_t chunk[CHUNK] = {0};
    for (; size > CHUNK; message += CHUNK, size -= CHUNK) {
        compress(&hash, message, CHUNK, 0);
    }
    memcpy(chunk, message, size);
    compress(&hash, chunk, size, UINT64_MAX);
    memcpy(digest, hash.h, DIGEST);
}

#endif
