#!/usr/bin/env bash
# Links of README.md and docs/ lead to files and headings that are there, and every path of this
# repository that they name in backticks exists; options that they name are options of a program.
# README and documents that are written by hand stay short.
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

# Every option that a user meets is one of some program, or of these others.
others=" --as --allow-run-as-root --bind-to --cflags --completion --cpus-per-task --deepspeed --hostfile --install \
--kill-on-bad-exit --libs --man --map-by --mpi --no-python --nodes --nproc-per-node --ntasks-per-node \
--num_gpus --out --output_dir --oversubscribe --pack --prefix --python --signal --skip-refused --time --use_cpu --write "
n_options=0
while read -r document option; do
    n_options=$((n_options + 1))
    grep -qF -- "| \`$option\`" docs/reference/options.md ||
        grep -qF -- "| \`$option " docs/reference/options.md ||
        case $others in *" $option "*) ;; *) false ;; esac ||
        complain "$document: $option is an option of no program"
done < <(grep -oE -- '(^|[ `|(])--[a-z][a-z_-]+' README.md docs/guide/*.md | sed 's/:.*--/ --/' | sort -u)
[ $n_options -gt 150 ] || complain "only $n_options options were found"

# Debian's Python refuses what pip would install outside of a virtual environment.
for document in README.md docs/guide/*.md; do
    grep -q 'pip install' "$document" && ! grep -qE 'venv|virtual environment' "$document" &&
        complain "$document: pip install without a virtual environment"
done

# README and what is written by hand stay short; tables between two marks are printed by programs.
n_lines=$(wc -l <README.md)
[ "$n_lines" -lt 150 ] || complain "README.md has $n_lines lines; it may have 149"
n_lines=$(cat docs/*.md docs/*/*.md | awk '
    /^<!-- .*: end -->$/ { is_printed = 0 }
    !is_printed { n++ }
    /^<!-- / && !/: end -->$/ { is_printed = 1 }
    END { print n }')
[ "$n_lines" -le 3300 ] || complain "docs/ has $n_lines lines written by hand; it may have 3300"
[ $n_named -gt 200 ] || complain "only $n_named links and paths were found"
exit $failed
