/** The view library in one place: Preact with htm templates. Text in a template is always text, never markup. */

import {h, render, createContext} from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export {render, createContext};
export {useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState} from "../vendor/hooks.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
