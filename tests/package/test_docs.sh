#!/usr/bin/env bash
# Links of README.md and docs/ lead to files and headings that are there, and every path of this
# repository that they name in backticks exists.
#
# Usage: test_docs.sh SOURCE
set -u
cd "$1" || exit 1
documents=(README.md docs/*.md docs/*/*.md)
failed=0

complain() {
    printf '%s\n' "$*"
    failed=1
}

# All documents are read twice: for their headings, then for what they name, a line each:
# DOCUMENT LINK FILE, and "yes" or "no": whether the file has the heading that is linked.
named() {
    # shellcheck disable=SC2016
    awk '
        FNR == 1 { is_code = 0; if (FILENAME == "README.md") pass++ }
        /^```/ { is_code = !is_code }
        pass == 1 && !is_code && /^#+ / {
            sub(/^#+ /, "")
            gsub(/\]\([^)]*\)/, "")
            text = tolower($0)
            gsub(/[^a-z0-9_ -]/, "", text)
            gsub(/ /, "-", text)
            headings[FILENAME "#" text] = 1
        }
        pass == 1 { next }
        {
            folder = FILENAME
            sub(/[^\/]*$/, "", folder)
            for (rest = $0; match(rest, /\]\([^)]*\)/); rest = substr(rest, RSTART + RLENGTH)) {
                link = substr(rest, RSTART + 2, RLENGTH - 3)
                if (link ~ /^http/)
                    continue
                file = heading = link
                sub(/#.*/, "", file)
                file = file == "" ? FILENAME : folder file
                while (sub(/[^\/.]+\/\.\.\//, "", file)) {
                }
                has = sub(/^[^#]*#/, "", heading) == 0 || (file "#" heading) in headings
                print FILENAME, link, file, has ? "yes" : "no"
            }
            for (rest = $0; match(rest, /`[a-z]+\/[A-Za-z0-9_.\/-]+`/);
                 rest = substr(rest, RSTART + RLENGTH - 1)) {
                path = substr(rest, RSTART + 1, RLENGTH - 2)
                if (path ~ /^(allocator|cmake|docs|examples|hardware|kernels|offload|tests|zero)\//)
                    print FILENAME, path, path, "yes"
            }
        }' "${documents[@]}" "${documents[@]}"
}

n_named=0
while read -r document link file has; do
    n_named=$((n_named + 1))
    [ -e "$file" ] || complain "$document: $link: no such file"
    [ "$has" = yes ] || complain "$document: $link: no such heading"
done < <(named)
[ $n_named -gt 200 ] || complain "only $n_named links and paths were found"
exit $failed
