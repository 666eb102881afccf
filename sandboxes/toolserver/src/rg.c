/* Starts the toolbox's ripgrep with the loader and the libraries beside it, so that it runs in an image without any. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char **with = calloc((size_t)argc + 6, sizeof *with);
    if (!with)
        return 2;
    size_t count = 0;
    with[count++] = "/.farm/lib/ld.so";
    with[count++] = "--library-path";
    with[count++] = "/.farm/lib";
    with[count++] = "/.farm/lib/rg";
    for (int i = 1; i < argc; i++)
        with[count++] = argv[i];
    execv(with[0], (char *const *)with);
    perror(with[0]);
    return 2;
}
