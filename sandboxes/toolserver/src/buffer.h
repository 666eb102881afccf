/* A growable run of bytes, and the little-endian wire format over it. */
#ifndef BUFFER_H
#define BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `failed` is set, and stays set, once memory could not be had; later puts do nothing. */
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

/* Reads a request's body; `bad` is set at the first thing that is not there or not well formed. */
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
/* A blob followed by a zero byte and holding none: usable in place as a C string. "" when bad. */
const char *get_string(struct reader *r);
/* `count` strings and a NULL after them, in an array the caller frees; NULL when bad or without memory. */
const char **get_strings(struct reader *r, size_t max);
/* True when everything was read and was well formed. */
bool reader_done(const struct reader *r);

#endif
