/* A growable byte array, and the little-endian wire format over it. */
#ifndef BUFFER_H
#define BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `failed` is set for good when an allocation fails; later puts do nothing. */
struct buffer {
    uint8_t *data;
    size_t len, cap;
    bool failed;
};

bool buffer_reserve(struct buffer *b, size_t more);
void buffer_free(struct buffer *b);
void put_bytes(struct buffer *b, const void *data, size_t len);
void put_u8(struct buffer *b, uint8_t value);
void put_u16(struct buffer *b, uint16_t value);
void put_u32(struct buffer *b, uint32_t value);
void put_u64(struct buffer *b, uint64_t value);
/* A blob: u32 length, then the bytes. */
void put_blob(struct buffer *b, const void *data, size_t len);
void set_u32(uint8_t *at, uint32_t value);
uint32_t read_u32(const uint8_t *at);

/* Reads a request's body. `bad` is set for good at the first missing or malformed field. */
struct reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};

struct blob {
    const uint8_t *data;
    size_t len;
};

uint8_t get_u8(struct reader *r);
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
struct blob get_blob(struct reader *r);
/* A blob without zero bytes, followed by one, so it can be used in place as a C string. "" if malformed. */
const char *get_string(struct reader *r);
/* A list of at most `max` strings, as an array that ends with NULL and that the caller frees. NULL if malformed or
   without memory. */
const char **get_strings(struct reader *r, size_t max);
/* True if the whole body was read and is well formed. */
bool reader_done(const struct reader *r);

#endif
